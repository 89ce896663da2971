"""Objects in a bucket: the process that fetches them, its cache, and its client.

`vfsd.remote.fetch_client.FetchClient` opens objects; see docs/adr/fetch-process.md.
"""
