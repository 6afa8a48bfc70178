"""A demonstration of exactly-once processing over real data, with the broker killed in mid-transaction.

`python -m demo` streams the 336,776 flights that left New York City in 2013 through two topics with stock
kafka-python clients, aborts some transactions on purpose, kills the broker twice, and then counts. The package's
modules: flights (the data and the plain computation to compare with), server (the broker's process), feeder
(stage 1), totals (stage 2), ledger (what the clients were told), audit (what readers see), screen (the output).
"""
