"""What is offered: presets, workload files, replays of recordings, and the GPU capacity they run on."""
