"""The queue of a cluster: its entries on disk, and what follows from them."""
