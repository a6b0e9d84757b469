"""Import and export of Hugging Face folders, which `transformers` loads.

FOLDER/config.json                         the model's shape; written after the weights
FOLDER/export.json                         the checkpoint that was exported; written last
FOLDER/model.safetensors                   or several files and model.safetensors.index.json
FOLDER/tokenizer.json, tokenizer_config.json
"""

from trainer.hugging_face.exporter import export, source_of
from trainer.hugging_face.importer import Read, opened

__all__ = ["Read", "export", "opened", "source_of"]
