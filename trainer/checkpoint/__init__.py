"""Coordinated checkpoints: all processes save together, and a restore may use any mesh."""
