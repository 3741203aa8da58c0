"""The published models, the GPUs and the clusters that requests may name, one data file each."""

from plimsoll.planners.catalogue.catalogue import Catalogue, catalogue
from plimsoll.planners.catalogue.clusters import Cluster
from plimsoll.planners.catalogue.models import CatalogueModel
from plimsoll.planners.catalogue.typical import typical_config

__all__ = ["Catalogue", "CatalogueModel", "Cluster", "catalogue", "typical_config"]
