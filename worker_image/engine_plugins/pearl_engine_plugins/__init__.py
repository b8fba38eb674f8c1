"""What PEARL adds to vLLM, loaded inside the engine's own processes.

`guard` closes the admin endpoints, `file_weights` loads new weights from files, `nixl_delay` stops NIXL's thread from
spinning, `step_recorder` writes down every engine step, `fake_device` plays a GPU's memory on a machine without one.
Nothing here imports the rest of PEARL: the package is installed beside whatever vLLM the image carries.
"""
