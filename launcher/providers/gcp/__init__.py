"""Cloud TPU slices: asked for as queued resources, then used as machines reached by SSH."""
