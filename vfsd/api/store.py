"""`Store`: a directory of videos, opened for use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from vfsd.catalog import (
    DEFAULT_STALENESS,
    Catalog,
    FindOptions,
    Transaction,
    absolute_url,
    database_taken_error,
    has_password,
    require_name,
    split_path,
)
from vfsd.core.model import FileState, LogicalVideo, Node, TilingDecision
from vfsd.core.process_control import lazy
from vfsd.disk.store_config import StoreSettings
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import (
    IntegrityError,
    NotFoundError,
    UsageError,
)
from vfsd.storage.context import StoreContext
from vfsd.validation import (
    boolean,
    is_pattern,
    is_url,
    local_path,
    no_such_file,
    seconds_or_more,
    whole_number,
)

if TYPE_CHECKING:
    from datetime import datetime

    import duckdb
    import pyarrow

    from vfsd.api.bulk_reads import Request, Scan, ScanOptions
    from vfsd.api.events import EventList
    from vfsd.api.growing_video import GrowingVideo
    from vfsd.api.layer import LayerHit
    from vfsd.api.reading import ReadOptions
    from vfsd.api.sample import Sample
    from vfsd.api.searches import StoreSearches
    from vfsd.api.store_labels import StoreDetections
    from vfsd.api.timeline import Timeline
    from vfsd.api.vector_search import NeighbourList, Query, RecentVectorSets
    from vfsd.api.video import Video
    from vfsd.catalog.catalog_detections import BoxConditions
    from vfsd.core.detections import Source
    from vfsd.core.frames import Frame, Frames
    from vfsd.core.label_query import Labels
    from vfsd.core.moments import Moment
    from vfsd.core.retention_policy import RetentionPolicy
    from vfsd.core.timebase import Seconds, Span
    from vfsd.derive.derived_data import DerivedBudget
    from vfsd.derive.proposals import Proposal
    from vfsd.derive.retile import OnProgress
    from vfsd.derive.tuner import BetweenSteps, OnFailed, Tuner, TuningBudget
    from vfsd.derive.what_if import Advice
    from vfsd.derive.workload import WorkloadQuery
    from vfsd.disk.object_store import Progress
    from vfsd.read.read_context import ReadContext, VideoContext
    from vfsd.read.shared_store import StoreAddress
    from vfsd.read.vector_blocks import VectorCache
    from vfsd.tiling import Region
    from vfsd.tiling.policy import LedgerParameters
    from vfsd.write.frame_input import FrameInput, RawInput
    from vfsd.write.unfinished_files import UnfinishedRecording
    from vfsd.write.video_writer import Ticks, VideoWriter, WriteOptions
    from vfsd.write.write_video import OnWritten

_Default = TypeVar("_Default")


class Store(Mapping[str, "Video"]):
    """A store, opened for use: a mapping of names to videos.

        with Store.open("/srv/videos") as store:
            video = store["cam1/a.mp4"]
            clip = video.read(span=(10, 20), region=(600, 300, 1000, 600))

    Safe to use from several threads, and after a fork.  Several processes may have a store open at
    once, a mount among them.  A store and its videos can be pickled: the other process opens the
    store when it is used, once for all objects that arrive there, and keeps it open.
    """

    def __init__(self, parts: StoreContext, threads: int | None = None) -> None:
        """Use `open` or `create`."""
        self.__dict__["_parts"] = parts
        self._threads = threads
        self._is_shared = False

    @classmethod
    def _reopened(cls, tools: ReadContext) -> Store:
        """The store of an unpickled object; it is opened at its first use."""
        store = cls.__new__(cls)
        store.__dict__.update(tools=tools, _threads=None, _is_shared=True)
        return store

    @classmethod
    def at_address(cls, address: StoreAddress) -> Store:
        """The store of this process at an address, as for an unpickled store."""
        from vfsd.read.shared_store import shared_context

        return cls._reopened(shared_context(address))

    def __reduce__(self) -> tuple[Callable[[ReadContext], Store], tuple[ReadContext]]:
        return Store._reopened, (self.tools,)

    @lazy
    def _parts(self) -> StoreContext:
        """The inner state; `__init__` sets it for a store that is open already."""
        return self.tools.parts

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, catalog_url: str | None = None) -> Store:
        """Make a new store in `path`, a directory that is empty or does not exist yet.

        `catalog_url` is the URL of a database that SQLAlchemy knows; by default the catalog is an
        SQLite file in the store.  When this returns, the store survives a power cut; after an
        interruption, call it again.

        Raises `ExistsError` where the directory or the database is in use, `BusyError` where
        another process is making a store there, and `UsageError` or `ExtraMissingError` for a URL
        that cannot be used or is in memory.  Nothing is made then.  Where two processes use one
        database at the same moment, the later one leaves a directory that `create` accepts again.
        """
        root = local_path(path, "a place for a store")
        if catalog_url is not None:
            catalog_url = absolute_url(catalog_url)
            _require_unused(root, catalog_url)
        is_secret = catalog_url is not None and has_password(catalog_url)
        with StoreDirectory.creating(
            root, catalog_url=catalog_url, is_secret=is_secret
        ) as directory:
            Catalog.create(directory.catalog_url, store_id=directory.id).close()
        return cls.open(root)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        threads: int | None = None,
        staleness: float | None = DEFAULT_STALENESS,
    ) -> Store:
        """Open a store.

        `path` is its directory.  For a store with a bucket, it may be the URL of its catalog on a
        PostgreSQL server, without a password: the first process of this host and user joins the
        store, in ``$VFSD_HOME`` or ``~/.cache/vfsd/STORE-ID``, and all others use that home.

        `threads` is the number of decoding threads; default: one for each core that this process
        may use.  A single one needs the least CPU time for a read, which is best where each core
        has a process of its own.

        `staleness` is for a catalog on a server: reads notice changes of other processes after at
        most that many seconds.  With 0 each read asks the server, with None none does.

        Raises `NoStoreError`, `StoreVersionError` for a store of a newer vfsd, `StoreError` where
        a part of the store is not a regular file or the catalog belongs to another store,
        `BusyError` and `UsageError`.  Raises `ReadOnlyError` where a backup or a restore was killed
        near its end, and the store cannot be written to finish it.
        """
        read_only = boolean(read_only, "read_only")
        if threads is not None:
            threads = whole_number(threads, "threads")
            if threads < 1:
                raise UsageError(f"threads must be at least 1, got {threads}")
        if staleness is not None:
            staleness = seconds_or_more(staleness, "staleness")
        if is_url(path):
            from vfsd.storage.homes import home_of_catalog  # stores on one host need none

            path = home_of_catalog(str(path))
        parts = StoreContext.open(
            local_path(path, "a store"), read_only=read_only, staleness=staleness
        )
        return cls(parts, threads)

    def close(self) -> None:
        """Close files, decoders and the catalog; the store's videos cannot be read afterwards.

        A store that was unpickled stays open for the other objects of its process.
        """
        if self._is_shared:
            return
        if "tools" in self.__dict__:
            self.tools.close()
        if "recent_vectors" in self.__dict__:
            self.recent_vectors.close()
        self._parts.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.path}>"

    def _repr_html_(self) -> str:
        """Return the first 20 videos for a notebook."""
        from vfsd.api.previews import store_html

        return store_html(self)

    # Two mappings with equal items are equal, which would read both catalogs.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def path(self) -> Path:
        """The directory of the store."""
        return self._parts.directory.root

    @property
    def catalog(self) -> Catalog:
        """The index: find and tag videos, frame tables, places of bytes."""
        return self._parts.catalog

    @property
    def settings(self) -> StoreSettings:
        """The settings in the store's ``vfsd.toml``."""
        return self._parts.settings

    @property
    def parts(self) -> StoreContext:
        """The inner state of the store, for the modules of vfsd that work on it."""
        return self._parts

    @lazy
    def tools(self) -> ReadContext:
        """The decoder pools and caches that the store's videos share; inner state as well."""
        # Imported here: a program that only looks at the catalog loads no decoder.
        from vfsd.read.read_context import ReadContext

        return ReadContext(self._parts, self._threads)

    # -- videos

    def __getitem__(self, name: str | os.PathLike[str]) -> Video:
        """The video with that name.

        Waits for a file that a mount is just making into a video.  Raises `NotFoundError`, also
        for a file that is not a video.
        """
        from vfsd.api.video import Video

        if isinstance(name, os.PathLike):
            name = os.fspath(name)
        if not isinstance(name, str):
            return self.open_video(self.catalog.video(name))  # refuses it
        return Video(self.tools.recent_videos.opened(name, self._named_context))

    def _named_context(self, name: str) -> VideoContext:
        try:
            return self._context(self.catalog.video(name))
        except NotFoundError:
            from vfsd.write.tree_edits import wait_until_classified

            wait_until_classified(self._parts, name)
            return self._context(self.catalog.video(name))

    @overload
    def get(self, key: str, /) -> Video | None: ...
    @overload
    def get(self, key: str, /, default: Video | _Default) -> Video | _Default: ...

    def get(self, key: str, /, default: object = None) -> object:
        """The video with that name, or `default` where there is none."""
        # That of `Mapping` expects a `KeyError`.
        try:
            return self[key]
        except NotFoundError:
            return default

    def __contains__(self, name: object) -> bool:
        try:
            self.catalog.video(str(name))
        except (NotFoundError, UsageError):  # a malformed name is not a video's
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        """The names of all videos, sorted."""
        return iter(self.catalog.find().names())

    def __len__(self) -> int:
        """Number of videos."""
        return len(self.catalog.find())

    def find(self, name: str | None = None, **options: Unpack[FindOptions]) -> Iterator[Video]:
        """The videos that `Catalog.find` finds with these arguments, opened."""
        return (self.open_video(info) for info in self.catalog.find(name, **options))

    def named(self, names: str | Iterable[str]) -> list[Video]:
        """The videos with these names, in that order, each once.

        A name with ``*``, ``?`` or ``[`` is a pattern as for `find`, unless a video has exactly
        this name; its videos are sorted.  Raises `UsageError` unless `names` is a name or a list
        of names, and `NotFoundError`, also for a pattern without a match.
        """
        if not isinstance(names, Iterable):
            raise UsageError(
                f"names must be a list, got {shown(names)}", hint="give a list of names"
            )
        found: dict[str, Video] = {}
        for name in [names] if isinstance(names, str) else names:
            if is_pattern(name) and name not in self:
                infos = self.catalog.matching(name)
                found.update((info.name, self.open_video(info)) for info in infos)
            else:
                video = self[name]
                found.setdefault(video.name, video)
        return list(found.values())

    def detections(
        self,
        labels: Labels | None = None,
        names: str | Iterable[str] | None = None,
        *,
        span: Span | None = None,
        **conditions: Unpack[BoxConditions],
    ) -> StoreDetections:
        """The labelled boxes of several videos that match all arguments.

            for name, box in store.detections("car & not parked", "cam1/**"): ...
            store.detections(names="cam1/**").counts()  # by label and source

        Issues an `UnknownLabelWarning` for a label that no box in the store has ever had.

        Args:
            labels: An expression, as for `VideoLabels.query`.
            names: As for `named`; default: all videos.
            span: Seconds of each video, start inclusive and end exclusive.  Videos that end before
                are left out; `OutOfRangeError` where all do.
            conditions: `region`, `source`, `min_confidence`, `track` and `attributes`, as for
                `VideoLabels.query`.

        Raises `UsageError`, and `NotFoundError` when the boxes are read.
        """
        from vfsd.api.labels import warn_of_unknown_labels
        from vfsd.api.store_labels import detections

        warn_of_unknown_labels(self.catalog.detections.unknown_labels(labels))
        listed = names if names is None or isinstance(names, str) else list(names)
        return detections(self, labels, listed, span, **conditions)

    def events(
        self, event: str, names: str | Iterable[str] = "**", /, **arguments: Any
    ) -> EventList:
        """Find the times at which tracked objects are related as `event` says, in several videos.

            store.events("inside(a, 400x300+600+300) for 5s", "cam1/**", a="person")

        `names` is as for `named`; `arguments` are those of `Video.events`, whose errors this
        raises, too.  An event is within one video.
        """
        from vfsd.api.events import events, split_arguments
        from vfsd.api.labels import warn_of_unknown_labels

        options, variables = split_arguments(arguments)
        found = events(self.named(names), event, variables, **options)
        warn_of_unknown_labels(found.unknown_labels)
        return found

    @lazy
    def vector_cache(self) -> VectorCache:
        """The vectors that were searched last; inner state as well."""
        from vfsd.read.vector_blocks import VectorCache

        return VectorCache(self._parts.objects)

    @lazy
    def recent_vectors(self) -> RecentVectorSets:
        """The sets of vectors that were searched last; inner state as well."""
        from vfsd.api.vector_search import RecentVectorSets

        return RecentVectorSets(self.catalog)

    def nearest(
        self,
        query: Query,
        k: int = 10,
        *,
        source: str | Source | None = None,
        names: str | Iterable[str] = "**",
        exact: bool = False,
        measure: bool = False,
    ) -> NeighbourList:
        """The runs of frames with the vectors nearest to one, by the cosine of the angle.

            store.nearest(text_vector, 20, source="clip")
            store.nearest(("cam1/a.mp4", (0, 30)), 20, names="cam1/**")

        Among fewer than 20,000 vectors the answer is exact.  Of more, one bit for each of their
        numbers chooses max(500, 20 k), which are compared exactly.  `NeighbourList.explain` says
        which it was.

        Args:
            query: A vector of the source; or the name of a video and a frame or a run (first, end)
                with a vector, which is left out of the answer.
            k: The number of answers.
            source: The source of the vectors; None: the only one.
            names: As for `named`.
            exact: Compare all vectors.
            measure: Compare all vectors as well, to know the recall of the answer.

        Raises:
            NotFoundError: No vectors fit, or a name does not exist.
            UsageError: An argument is malformed, or several sources fit.
            IntegrityError: Stored vectors are damaged.
        """
        from vfsd.api.vector_search import nearest

        return nearest(self, query, k, source=source, names=names, exact=exact, measure=measure)

    def sample(
        self,
        n: int,
        *,
        seconds: Seconds | None = None,
        names: str | Iterable[str] = "**",
        unlabelled: str | Source | None = None,
        how: str = "random",
        source: str | Source | None = None,
        seed: int | None = None,
    ) -> list[Sample]:
        """Choose runs of frames to look at or to label next; fewer than `n` where no more fit.

            store.sample(5, names="cam1/**", unlabelled="anna")
            store.sample(5, how="far", source="clip", unlabelled="anna")

        Args:
            n: The number of runs.
            seconds: Their length; default: 1, and with "far" the run of the vector.
            names: As for `named`.
            unlabelled: A source: runs with a frame that it has labelled or examined are left out.
            how: "random": each window of `seconds` is as likely as any other.  "far": the vectors
                farthest from those of seen frames, and from each other, of at most 50,000.
            source: The source of the vectors for "far"; None: the only one.
            seed: The same seed gives the same runs, while videos and labels are the same.

        Raises:
            NotFoundError: A name does not exist, or no vectors fit.
            UsageError: An argument is malformed, or several sources fit.
        """
        from vfsd.api.sample import sample

        return sample(
            self,
            n,
            seconds=seconds,
            names=names,
            unlabelled=unlabelled,
            how=how,
            source=source,
            seed=seed,
        )

    @property
    def searches(self) -> StoreSearches:
        """Queries of boxes and events that are kept under a name."""
        from vfsd.api.searches import StoreSearches

        return StoreSearches(self)

    def moments(
        self,
        label: Labels | None = None,
        names: str | Iterable[str] = "**",
        *,
        source: str | Source | None = None,
        min_confidence: float | None = None,
    ) -> list[Moment]:
        """The labelled runs of frames of several videos, by video, then by first frame.

            for moment in store.moments("eating & not night", "cam1/**"):
                store[moment.video].views.open(moment.name + ".mp4")

        `names` is as for `named`; the others are as for `VideoMoments.query`, whose errors and
        warning apply, too.
        """
        from vfsd.api.labels import warn_of_unknown_labels
        from vfsd.api.moments import find_moments
        from vfsd.api.video import context_of

        videos = [context_of(video) for video in self.named(names)]
        warn_of_unknown_labels(self.catalog.detections.unknown_labels(label))
        return find_moments(videos, label, source=source, min_confidence=min_confidence)

    def timeline(self, names: str | Iterable[str]) -> Timeline:
        """The videos of a camera in the order of their recording.

        `names` is as for `named`, or a directory: ``timeline("cam3")`` has all videos below it.
        Raises `NotFoundError` for a missing video, a pattern without a match, and a directory
        without videos.
        """
        from vfsd.api.timeline import Timeline

        listed = [one.rstrip("/") for one in ([names] if isinstance(names, str) else names)]
        videos = self.named(
            name if is_pattern(name) or name in self else f"{name}/**".lstrip("/")
            for name in listed
        )
        return Timeline(", ".join(listed), videos)

    def together(
        self, names: Iterable[str], at: datetime, *, region: Region | None = None
    ) -> dict[str, Frame | None]:
        """The frames that several cameras recorded at one time, by name.

        Each name is as for `timeline`.  A camera without a video then has None.
        """
        found: dict[str, Frame | None] = dict.fromkeys(names)
        for name in found:
            with suppress(NotFoundError):
                found[name] = self.timeline(name).frame_at(at, region=region)
        return found

    def top(
        self, count: int, layer: str, names: str | Iterable[str] = "**", /, **arguments: Any
    ) -> list[LayerHit]:
        """The best frames of a layer of several videos, as `Layer.top` finds them.

            store.top(25, "saliency", "cam1/**", boxes="car", low=153)

        `names` is as for `named`, and `arguments` are those of `Layer.top`.  Videos of a pattern
        that lack the layer are left out; equal counts are in the order of the videos.  Raises
        `NotFoundError` where no video has the layer.
        """
        from vfsd.api.labels import warn_of_unknown_labels
        from vfsd.api.layer import layers_of, top_of_layers

        if (labels := arguments.get("boxes")) is not None:
            warn_of_unknown_labels(self.catalog.detections.unknown_labels(labels))
        return top_of_layers(layers_of(self.named(names), layer), count, **arguments)

    def set_captured(
        self, names: str | Iterable[str], captured: datetime | str | None, *, zone: str = "UTC"
    ) -> int:
        """Set when the first frames of videos were recorded; return the number of videos.

            store.set_captured("cam3/**", "name:%Y-%m-%d/%H-%M-%S", zone="Europe/Zurich")

        Nothing changes after an error.

        Args:
            names: As for `named`.
            captured: A datetime with a time zone; "container" for the tags of the file;
                "name:PATTERN" for the name, with ``%Y %m %d %H %M %S %f``, ``%s`` (Unix time) and
                ``*``; None for an unknown time.
            zone: The time zone of names.

        Raises:
            NotFoundError: A video is missing, or its name or container has no time.
            UsageError: An argument is malformed.
        """
        from vfsd.core.capture_time import capture_source

        self._parts.require_writable()
        source = capture_source(captured, zone)
        found = [(video.info, source(video.info)) for video in self.named(names)]
        for info, when in found:
            if when is None and captured is not None:
                place = str(captured).partition(":")[0]
                raise NotFoundError(
                    f"{info.name!r} has no time of recording in its {place}",
                    hint="give other names, another pattern or a time",
                )
        with self.catalog.writing() as change:
            for info, when in found:
                change.videos.set_captured(info.id, when)
        return len(found)

    def open_video(self, info: LogicalVideo) -> Video:
        """The video of a catalog record."""
        from vfsd.api.video import Video

        return Video(self._context(info))

    def _context(self, info: LogicalVideo) -> VideoContext:
        from vfsd.read.read_context import VideoContext

        return VideoContext(self.tools, info)

    def growing(self, name: str) -> GrowingVideo:
        """A video that is still being written, by a `writer` or through a mount, in any process.

        Raises `NotFoundError` where no writer has that name, and `BusyError` while there is nothing
        to read: before the first fragment is complete, and while the file is being finished.
        """
        from vfsd.api.growing_video import GrowingContext, GrowingVideo, is_being_written
        from vfsd.write.unfinished_files import active_partials

        name = "/".join(split_path(name))
        for file in active_partials(self._parts.objects):
            if file.name == name:
                with suppress(FileNotFoundError):  # it was finished just now
                    is_written = partial(is_being_written, file)
                    return GrowingVideo(
                        GrowingContext(self._parts, self.tools, name, str(file.path), is_written)
                    )
        with suppress(FileNotFoundError, NotFoundError), self._parts.catalog.reading() as seen:
            node = seen.tree.resolve(name)
            if node.state is FileState.SPOOLED:
                path = str(self._parts.private_file(node))
                is_spooled = partial(self._is_spooled, node.ino)
                return GrowingVideo(GrowingContext(self._parts, self.tools, name, path, is_spooled))
        raise NotFoundError(
            f"no writer has {name!r} open", hint="open a finished video by its name alone"
        )

    def _is_spooled(self, ino: int) -> bool:
        """Whether a mount has that file open, or waits to classify it."""
        if self._parts.directory.mounted_by() is None:
            return False
        with suppress(NotFoundError), self._parts.catalog.reading() as seen:
            return seen.tree.node(ino).state is FileState.SPOOLED
        return False

    # -- reads

    def read(self, name: str, **options: Unpack[ReadOptions]) -> Frames:
        """Frames of the video with that name; see `Video.read`."""
        return self[name].read(**options)

    def read_many(self, requests: Iterable[Request]) -> Iterator[Frames]:
        """The results of `Video.read` for pairs of a name and its arguments, in their order.

            clips = [("a.mp4", {"span": (1, 2)}), ("b.mp4", {"frames": [7], "size": (64, 48)})]
            for frames in store.read_many(clips): ...

        Several reads run at a time.  Raises `NotFoundError`, and as `Video.read`, when it is the
        turn of that request.
        """
        from vfsd.api.bulk_reads import read_many

        return read_many(self.__getitem__, requests, self.tools.threads)

    def scan(self, name: str, labels: Labels | None = None, **options: Unpack[ScanOptions]) -> Scan:
        """The pixels of labelled boxes of the video with that name; see `Video.scan`."""
        return self[name].scan(labels, **options)

    # -- tables

    def to_arrow(
        self,
        table: str,
        names: str | Iterable[str] | None = None,
        *,
        columns: Iterable[str] | None = None,
    ) -> pyarrow.RecordBatchReader:
        """A table of the store as a stream of Arrow batches, which are made while they are read.

            store.to_arrow("detections", "cam1/**", columns=["name", "frame", "label"])

        A batch has at most 65,536 rows.  Each part is read from a snapshot of its own.

        Args:
            table: "videos", "frames", "detections", "reads", "tiles" or "vectors".
            names: A name or a pattern as for `find`, or several of them; default: all videos.
            columns: Those to compute, in order; default: all of docs/reference/tables.md.

        Raises:
            UsageError: The table or a column does not exist.
            NotFoundError: No video has one of the names.
            ExtraMissingError: pyarrow is not installed.
        """
        # The package is above this one, and the core must not load it: so by name, when called.
        reader: pyarrow.RecordBatchReader = import_module("vfsd.tables.sql").to_arrow(
            self, table, names, columns=columns
        )
        return reader

    def duckdb(self, *, external_access: bool = False) -> duckdb.DuckDBPyConnection:
        """A connection of DuckDB with the tables of `to_arrow` as read-only views.

            with store.duckdb() as db:
                db.sql("SELECT label, count(*) FROM detections GROUP BY label").show()

        Each statement scans a view again: only the columns that the statement needs, and
        only the videos that a condition on `name` may match.  Keep the store open until the
        connection is closed.  Statements reach neither files nor the network, unless
        `external_access`.  Raises `ExtraMissingError`.
        """
        connection: duckdb.DuckDBPyConnection = import_module("vfsd.tables.sql").connect(
            self, external_access=external_access
        )
        return connection

    # -- work on many videos

    def order(
        self,
        verb: str,
        videos: str | Sequence[str] | None = None,
        *,
        unit_seconds: float | None = None,
        **spec: Any,
    ) -> Any:
        """Plan work in units that any process may perform, and return it as a `vfsd.work.Order`.

            store.order("retile", "cam1/**", layout="uniform:2x2").run("local:4")

        Args:
            verb: "ingest", "retile", "render", "detect", "verify", "scrub", "compress", "replace",
                "tune" or "backup".
            videos: A name or a pattern as for `find`, or several of them; default: all videos.
                For ingest: files, directories and URLs that all workers can read.
            unit_seconds: The length of a unit in seconds of video; default: 5 to 45.
            spec: `settings`, `span`, `gop` and one of `layout`, `roi` and `around` for retile;
                `settings`, `span`, `gop` and `size` for render; `detector` ("motion" or
                "onnx:MODEL"), `every`, `min_confidence`, `label`, `span` and `replace` for detect;
                `to` (a directory of the store), `stream`, `size`, `tags`, `verify` and
                `skip_refused` for ingest; `level` or `by_budget` for compress; `psnr`, `codec` and
                `keep` for replace; `to` (the URL of a bucket), `options` and `derived` for
                backup, which copies objects for a later `vfsd backup` to publish.

        Raises `UsageError`, also for a video that must be verified first, and `NotFoundError`.
        """
        orders = import_module("vfsd.work.orders")
        return orders.make_order(self, verb, videos, unit_seconds, spec)

    # -- files and directories

    def node(self, path: str) -> Node:
        """The file or directory at `path`.  Raises `NotFoundError`."""
        with self._parts.catalog.reading() as seen:
            return seen.tree.resolve(path)

    def entries(self, path: str = "") -> list[tuple[str, Node]]:
        """The entries of a directory, by name.  Raises `NotFoundError`, `UsageError` for a file."""
        with self._parts.catalog.reading() as seen:
            node = seen.tree.resolve(path)
            if not node.is_dir:
                raise UsageError(f"{path!r} is not a directory")
            return seen.tree.children(node.ino)

    def remove(self, path: str, *, recursive: bool = False) -> int:
        """Remove a file or, with `recursive`, a directory; returns the number of files.

        Files that were ingested with ``link=True`` stay where they are.  Raises `NotFoundError`,
        and `UsageError` for a directory that is not empty.
        """
        from vfsd.write.tree_edits import remove

        return remove(self._parts, path, boolean(recursive, "recursive"))

    def move(self, old: str, new: str, *, replace: bool = False) -> None:
        """Rename a file or a directory; missing directories of the new name are made.

        Into an existing directory, or to a name with a slash at the end, it moves under its own
        name.  Raises `NotFoundError`, `ExistsError` (for files, unless `replace`), and `UsageError`
        for a name that a mount cannot show.
        """
        from vfsd.write.tree_edits import move

        move(self._parts, old, new, boolean(replace, "replace"))

    # -- new videos

    def ingest(
        self,
        source: str | os.PathLike[str],
        name: str | None = None,
        *,
        link: bool = False,
        replace: bool = False,
        stream: int | None = None,
        size: str = "first",
        on_progress: Progress | None = None,
    ) -> Video:
        """Put a video file into the store; the store is unchanged after an error.

        Args:
            source: The file.
            name: The name in the store; default: that of the file.  With a slash at the end it is
                that of a directory.
            link: Leave the file where it is, and index it there.  The store never writes or deletes
                it.  By default the file is copied as it is.
            replace: Replace an existing file of that name.
            stream: The number of the video stream, among all streams of the file; default: the best
                one according to FFmpeg.  Two names with two streams store the bytes once.
            size: For pictures that change their size: scale all to the "first" or to the "largest".
            on_progress: Called with the number of bytes copied.

        Raises:
            RefusedMediaError: The file is not a video.
            ExistsError: The name exists, without `replace`.
            UsageError: The file belongs to the store, or a mount cannot show the name: more than
                255 bytes in UTF-8, or a NUL.
            BusyError: The file changed while it was read.
            NoSpaceError: The disk is full.
        """
        from vfsd.write.ingest_file import (
            SourceFile,
            ingest_copy,
            ingest_link,
            require_outside_store,
        )

        self._parts.require_writable()
        link, replace = boolean(link, "link"), boolean(replace, "replace")
        path = local_path(source, "a file")
        if path.is_dir():
            raise UsageError(
                f"{path} is a directory", hint="give a file; `vfsd ingest` takes all below one"
            )
        if not path.is_file():
            raise no_such_file(path)
        if isinstance(name, str) and name.endswith("/"):
            name += path.name
        what = SourceFile(path, name or path.name, path.stat().st_size)
        require_outside_store(self._parts, what)
        put = ingest_link if link else ingest_copy
        if stream is not None:
            stream = whole_number(stream, "stream")
        if size not in ("first", "largest"):
            raise UsageError(f"size must be first or largest, got {shown(size)}")
        return self.open_video(
            put(
                self._parts,
                what,
                replace=replace,
                stream=stream,
                in_largest_size=size == "largest",
                on_progress=on_progress,
            )
        )

    def write(
        self,
        name: str,
        data: FrameInput | RawInput,
        *,
        size: tuple[int, int] | None = None,
        pts: Ticks | None = None,
        replace: bool = False,
        on_progress: OnWritten | None = None,
        **form: Unpack[WriteOptions],
    ) -> Video:
        """Make a video of pictures, of samples, or of a stream of a file.

        - Pictures: an array of frames x height x width x channels, or anything that numpy makes one
          of, frames of another read, or a sequence of these.
        - Bare samples: bytes or an open file, with `size`.
        - YUV4MPEG2: bytes or an open file, without `size` and `format`, are pictures as well.
          Rate, range and aspect are those of the stream where `form` has none.  Under a name that
          ends with .y4m they are a stream.
        - A stream: bytes or an open file, without size and times, of any kind that `ingest` takes;
          it is stored as it is.

            store.write("a.mp4", pixels, fps=25)
            store.write("b.mkv", other.iterate(size=(640, 360)), fps=other.fps, codec="ffv1")
            store.write("c.mp4", open("c.rgb", "rb"), size=(640, 360), fps="29.97", quality=18)
            store.write("e.mp4", pixels, fps=25, codec="hevc", psnr=42)
            store.write("f.mp4", pixels, fps=25, sound="talk.wav")
            store.write("g.mkv", pixels, fps=25, sound=(samples, 48000), sound_codec="flac")
            store.write("d.ts", socket.makefile("rb"))

        The video appears under its name whole, or not at all.  Data that has arrived is kept as a
        recording (see `recover`) where the whole file cannot be published at the moment, the disk
        is full or fails, a pipe ends within a picture (`CutOffError`), or `data` raises an
        `OSError`, as a broken connection does.  A note of the error says so.

        Args:
            name: The name in the store; its extension selects the container.
            data: The pictures, samples or stream.
            size: (width, height) in pixels, for bare samples.
            pts: The time stamp of each picture, with a `time_base`; otherwise `fps` is needed.
            replace: Replace an existing file of that name.
            on_progress: Called with the number of pictures, or of bytes of a stream, since the last
                call.
            form: The fields of `vfsd.write.video_writer.WriterSettings`.

        Raises:
            UsageError: Arguments contradict each other, a mount cannot show the name, or the
                container cannot store the times.
            NotFoundError: The file of `sound` does not exist.
            RefusedMediaError: A stream is not a video.
            ExistsError: The name exists, without `replace`.
            BusyError: Another writer has that name.
            NoSpaceError: The disk is full.
            IntegrityError: The written file has other times than given.
        """
        from vfsd.write.write_video import write_video

        video = write_video(
            self._parts,
            name,
            data,
            size=size,
            pts=pts,
            replace=boolean(replace, "replace"),
            on_progress=on_progress,
            form=form,
        )
        return self.open_video(video)

    def writer(
        self,
        name: str,
        *,
        width: int,
        height: int,
        replace: bool = False,
        **form: Unpack[WriteOptions],
    ) -> VideoWriter[Video]:
        """A writer for pictures that come one by one; see `VideoWriter`.

        With ``sound=AudioFormat(48000, "stereo", "int16")`` sound comes piece by piece, too.

        Args:
            name: The name in the store; its extension selects the container.
            width: In pixels.
            height: In pixels.
            replace: Replace an existing file of that name.
            form: As for `write`.

        Raises:
            UsageError: An argument is malformed.
            NotFoundError: The file of `sound` does not exist.
            ExistsError: The name exists, without `replace`.
            BusyError: Another writer has that name.
            NoSpaceError: The disk is full.
        """
        from vfsd.write.video_writer import WriterSettings
        from vfsd.write.write_video import CLOSE_AGAIN, open_writer

        replace = boolean(replace, "replace")
        size = width, height
        return open_writer(
            self._parts, name, size, WriterSettings(**form), replace, CLOSE_AGAIN, self.open_video
        )

    def recordings(self) -> list[UnfinishedRecording]:
        """Recordings that were not published, the oldest first; see `recover`.

        Their writers died, or could not publish them.  They take room, and are not videos yet.
        """
        from vfsd.write.unfinished_files import unfinished_recordings

        return unfinished_recordings(self._parts)

    def recover(self, recording: UnfinishedRecording, name: str | None = None) -> Video:
        """Make a video of a recording.

            for one in store.recordings():
                store.recover(one)

        `name` is that of the video; default: the name that it was written for or, where that is
        taken, a similar one: ``a-recovered.mp4``.

        Raises `RefusedMediaError` where it has no whole picture, `ExistsError` for a `name` that is
        taken, `NotFoundError` where it is gone, `BusyError`, `NoSpaceError` and `UsageError`.  The
        recording is kept then.
        """
        from vfsd.write.write_video import recover

        return self.open_video(recover(self._parts, recording, name))

    # -- policies and budgets

    def set_policy(self, path: str, policy: RetentionPolicy | str | None) -> RetentionPolicy:
        """Set the policy for the original of a video, or for those below a directory.

            store.set_policy("cam1/", "original=replaceable,psnr=40,replace-after=30d")

        A slash at the end means a directory, which is made where it is missing: so it has a policy
        before it has videos.  None removes the policy.  Returns the policy that applies now.

        Raises `NotFoundError`, `ReadOnlyError`, `ExistsError` for a file with a slash, and
        `UsageError` for the root of the store or a malformed policy.
        """
        from vfsd.core.retention_policy import RetentionPolicy
        from vfsd.storage.original_guard import set_policy
        from vfsd.write.ingest_file import make_directories

        self._parts.require_writable()
        if not isinstance(path, str):
            raise UsageError(f"path must be text, got {shown(path)}", hint="give a name, as text")
        chosen = RetentionPolicy.parse(policy) if isinstance(policy, str) else policy
        folders = split_path(path) if path.endswith("/") else []
        for name in folders:
            require_name(name)
        if folders:

            def make(change: Transaction) -> None:
                make_directories(change, "/".join(folders), uid=os.getuid(), gid=os.getgid())

            self._parts.write_with_reserve(make)
        return set_policy(self._parts, path, chosen)

    @property
    def budget(self) -> DerivedBudget:
        """The limit for the tiles and renditions of all videos, and their present size."""
        from vfsd.derive.derived_data import DerivedBudget

        return DerivedBudget(self._parts, self.tools, None)

    # -- tuning

    def advise(self, name: str, workload: Sequence[WorkloadQuery] | None = None) -> Advice:
        """Advice on tiles of the video with that name; see `VideoTiles.advise`."""
        return self[name].tiles.advise(workload)

    def proposals(self, names: str | Sequence[str] | None = None) -> list[Proposal]:
        """Tiles and renditions that pay for the reads in the read log, the best value first.

        `names` are as for `named`; default: all videos.  Raises `NotFoundError`.
        """
        return self.tuner(names).proposals()

    def tune(
        self,
        names: str | Sequence[str] | None = None,
        *,
        budget: TuningBudget | None = None,
        on_progress: OnProgress | None = None,
        on_failed: OnFailed | None = None,
    ) -> list[TilingDecision]:
        """Make the proposed tiles and renditions, the best value first; returns the decisions.

        Each segment is published in one transaction with its decision.  Finished segments stay
        after an error.

        Args:
            names: As for `named`; default: all videos.
            budget: The seconds and bytes to spend; default: no limit.
            on_progress: Called with (frames done, frames in all); it may raise to stop.
            on_failed: Called with (video, error) for each video that is damaged, or cannot be
                tiled.  Without it, the first one raises.

        Raises `NotFoundError`, and as `VideoTiles.retile`.
        """
        return self.tuner(names).tune(budget, on_progress, on_failed)

    def tuner(
        self,
        names: str | Sequence[str] | None = None,
        *,
        maker: str = "tune",
        between: BetweenSteps | None = None,
        terms: LedgerParameters | None = None,
    ) -> Tuner:
        """A `vfsd.derive.tuner.Tuner`, for programs that make one proposal at a time.

        Args:
            names: As for `named`; default: all videos.
            maker: Noted with each decision: "tune" or "background".
            between: Called before each picture; it may wait, or raise to drop the segment.
            terms: The conditions under which tiles pay.
        """
        from vfsd.api.video import context_of
        from vfsd.derive.tuner import Tuner

        return Tuner(
            self._parts,
            self.tools,
            lambda: (
                self._read_lately()
                if names is None
                else [context_of(video) for video in self.named(names)]
            ),
            self._context,
            maker=maker,
            between=between,
            terms=terms,
        )

    def undo(self, decision: int | None = None) -> TilingDecision:
        """Take back the decision with that number, by default the last one in use.

        The segments that it replaced are used again.  Raises `NotFoundError`, `ExistsError` where
        it was taken back before, and `OutdatedError` where a later decision has its place.
        """
        from vfsd.derive.tuner import undo_decision

        number = None if decision is None else whole_number(decision, "decision")
        return undo_decision(self._parts, number)[0]

    def _read_lately(self) -> list[VideoContext]:
        """The videos with entries in the read log."""
        self.catalog.fold_reads()
        found = []
        with self.catalog.reading() as seen:
            for number in seen.read_log.videos():
                with suppress(NotFoundError, IntegrityError):  # it is being written
                    found.append(seen.videos.get(number))
        return [self._context(info) for info in found]


def _require_unused(root: Path, catalog_url: str) -> None:
    """Raises `ExistsError` for the catalog of another store than the one in `root`.

    This is asked before anything is made.  `Catalog.create` asks again.
    """
    if Catalog.is_at(catalog_url):
        owner = Catalog.owner_at(catalog_url)
        if owner is None or owner != StoreDirectory.begun_id(root):
            raise database_taken_error(catalog_url)
