"""`./run pipeline`: a year of real flights through Spark and sealog, killed in the middle, checked to the last one."""
