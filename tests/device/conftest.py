import wholestep.device.compile  # noqa: F401  registers the backend
