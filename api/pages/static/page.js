// What every page has: the field for the API key.

import { keyField } from "./apikey.js";

keyField();
