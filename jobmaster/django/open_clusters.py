"""The connections of this process to the clusters of its backends.

Django makes a backend for each thread. All of them share one ``SyncCluster`` for each configuration, and a child that was
forked opens one of its own.
"""

from __future__ import annotations

import os
import threading

from jobmaster.client.sync import SyncCluster
from jobmaster.django.options import BackendOptions
from jobmaster.handlers import Handlers
from jobmaster.settings.model import ClusterSettings
from jobmaster.wiring import connect_sync


class OpenCluster:
    """A cluster, its settings, and the handlers that this process has declared for it."""

    def __init__(self, options: BackendOptions) -> None:
        self.settings: ClusterSettings = options.load()
        self.handlers = Handlers()
        self.lock = threading.Lock()
        """Held while a handler is declared."""
        self.joins = options.joins(self.settings)
        """A job's row joins the transaction of the backend's database."""
        self.client: SyncCluster = connect_sync(self.settings, handlers=self.handlers)


class OpenClusters:
    """Options -> cluster. It is made when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._by_options: dict[BackendOptions, OpenCluster] = {}

    def of(self, options: BackendOptions) -> OpenCluster:
        """The cluster of these options.

        Raises:
            InvalidSettings: with every problem of the configuration.
        """
        if self._pid == os.getpid() and (found := self._by_options.get(options)) is not None:
            return found
        with self._lock:
            if self._pid != os.getpid():
                # The connections of the parent process are the parent's.
                self._by_options, self._pid = {}, os.getpid()
            if options not in self._by_options:
                self._by_options[options] = OpenCluster(options)
            return self._by_options[options]

    def close(self) -> None:
        """Close every connection that this process has opened."""
        with self._lock:
            opened, self._by_options = self._by_options, {}
        if self._pid == os.getpid():
            for cluster in opened.values():
                cluster.client.close()


OPEN = OpenClusters()
"""Those of this process."""
