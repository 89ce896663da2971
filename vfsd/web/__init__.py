"""The web server of a store: media over HTTP, the API below ``/api/1`` and the page."""
