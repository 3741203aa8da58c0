// The API's reference: Swagger UI on the service's own contract.

import { keyHeaders } from "./apikey.js";

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
  requestInterceptor: (request) => ({ ...request, headers: { ...request.headers, ...keyHeaders() } }),
});
