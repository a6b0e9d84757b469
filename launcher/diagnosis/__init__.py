"""Why a run was slow, and what its processes do: from records and stacks."""
