"""Model providers, one file each. The contract is `model.py`."""
