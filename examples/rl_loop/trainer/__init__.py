"""What runs in the trainer pod: start at `train.py`."""
