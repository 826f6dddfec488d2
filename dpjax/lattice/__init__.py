"""Engine: laws of the privacy loss on a grid, composed by Fourier transforms, with certified bounds on both sides."""
