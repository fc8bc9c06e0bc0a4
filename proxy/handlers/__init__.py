"""One file per group of routes; `ROUTES` in `proxy.routes` lists them."""
