"""The slot log: rows that Spark reads are durable before nsqd drops their messages."""
