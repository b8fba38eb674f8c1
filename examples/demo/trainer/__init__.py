"""What runs in the trainer pod of the demo."""
