"""What a step would do under explicit axis types, where layouts are part of the types of arrays."""
