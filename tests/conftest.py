"""Every test sees the CPU as eight devices."""

from wholestep.xla.devices import configure_devices

configure_devices()
