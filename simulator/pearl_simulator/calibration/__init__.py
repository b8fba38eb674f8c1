"""The two calibrations of the engines, clean and paper, and the scripts that fit them."""
