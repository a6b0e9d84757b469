"""Job and hosts -> plan: the mesh, the batch split, and the sharding of every array."""
