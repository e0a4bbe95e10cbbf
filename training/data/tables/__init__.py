"""Tables of declared columns: csv and parquet, as records in memory or in a mapped file."""
