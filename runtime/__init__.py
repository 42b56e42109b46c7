"""The process and what it runs on: device, threads, libraries, logs."""
