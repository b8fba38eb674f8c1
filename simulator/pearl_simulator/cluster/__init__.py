"""The simulated cluster: engines, router, pods, spot capacity, trainer and loans on one virtual clock."""
