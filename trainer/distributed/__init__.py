"""How the processes find each other, agree, and stop together."""
