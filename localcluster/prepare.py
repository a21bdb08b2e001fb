"""Builds what a cluster with gpushare needs, before it starts."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcluster.build import Progress, build
from localcluster.host import check_host
from localcluster.imagebuild import gpushare_image
from localcluster.toolkit import Setup, provide_toolkits
from localcluster.versions import DEFAULT, Version


def prepare(progress: Progress, version: Version = DEFAULT) -> Path:
    """Build gpushare's image while the programs of a cluster are built; return its archive.

    The image mostly waits for the network and the disk, the compiler never. `progress` is called
    from two threads. Raises HostError, BuildError, of both only the programs'.
    """
    check_host()
    with ThreadPoolExecutor(max_workers=1) as pool:
        image = pool.submit(gpushare_image, progress)
        build(progress, version)
        provide_toolkits((Setup.LEGACY,), progress)
    return image.result()
