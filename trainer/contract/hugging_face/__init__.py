"""The config.json of Hugging Face folders, and the families of models that it names."""
