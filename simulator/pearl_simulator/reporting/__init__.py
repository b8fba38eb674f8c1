"""Reports: tables, plots, pages, intervals, and the pool of processes that fills them."""
