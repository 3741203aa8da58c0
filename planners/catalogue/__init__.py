"""The published models and the GPUs that requests may name, one data file each."""

from planners.catalogue.catalogue import Catalogue, catalogue
from planners.catalogue.models import CatalogueModel
from planners.catalogue.typical import typical_config

__all__ = ["Catalogue", "CatalogueModel", "catalogue", "typical_config"]
