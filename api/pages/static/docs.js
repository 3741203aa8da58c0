// The API's reference: Swagger UI on the service's own contract.

import { keyHeaders } from "./apikey.js";

// It has a dark look of its own, which a class of the page turns on.
const dark = matchMedia("(prefers-color-scheme: dark)");
const followTheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", followTheme);
followTheme();

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
  requestInterceptor: (request) => ({ ...request, headers: { ...request.headers, ...keyHeaders() } }),
});
