"""Job and hosts -> plan: the mesh, the split of the batch, the sharding of every array."""
