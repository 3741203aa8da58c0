"""The published models, the GPUs and the clusters that requests may name, one data file each."""

from planners.catalogue.catalogue import Catalogue, catalogue
from planners.catalogue.clusters import Cluster
from planners.catalogue.models import CatalogueModel
from planners.catalogue.typical import typical_config

__all__ = ["Catalogue", "CatalogueModel", "Cluster", "catalogue", "typical_config"]
