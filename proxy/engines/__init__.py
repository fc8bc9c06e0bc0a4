"""The engines behind one seam: see `base`."""
