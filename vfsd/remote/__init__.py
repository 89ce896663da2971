"""Objects in a bucket: the process that fetches them, its cache, and its client.

`vfsd.remote.fetch_client.FetchClient` opens objects. After a fork, obstore waits forever in the
child, and vfsd allows forks. So:

- One process for each home and user has obstore, the credentials, the rate limiter, the retries and
  the writing end of the cache. After a kill, the next read starts it again.
- Clients read the cache files first, and ask on a Unix socket for what is missing. A run of 4 MiB
  gets a new generation when it is evicted, so that a client notices bytes that went while it read
  them. Eviction needs no clock.
- The cache is neither trusted nor synced. Readers compare checksums and fetch damaged blocks again.
- Maps are read by ``pread``: a mapping of a truncated file would end the user's process.
"""
