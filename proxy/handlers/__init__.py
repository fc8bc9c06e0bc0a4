"""One file per group of routes; `ROUTES` in `proxy.app` lists them."""
