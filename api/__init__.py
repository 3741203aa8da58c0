"""HTTP: routes, problem documents and the OpenAPI contract."""
