"""Notifies the followers of views: changes are collected for a moment, then each connection gets one write.

This module has the timers; `dialects/courier/sessions/view_feed.py` makes the messages. A view without followers costs nothing here.
There is one timer for what changed, one for views that are made on demand, and one for all heartbeats; an idle follower has none of its
own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Session
from penstock.core.scopes import Principal
from penstock.dialects.courier.operations import views
from penstock.dialects.courier.sessions.view_feed import ViewFeed, ViewFollower

if TYPE_CHECKING:
    from penstock.server.engine.runtime import Runtime


class ViewFollowers:
    """The followers of one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._machine = runtime.machine
        self.feeds: dict[str, ViewFeed] = {name: ViewFeed(view) for name, view in self._machine.views.all.items()}
        self.followed: dict[str, ViewFeed] = {}
        """Feeds with followers."""
        self._sessions: dict[Session, list[ViewFollower]] = {}
        self._updated: dict[Session, None] = {}
        """Sessions that received something since the last heartbeat."""
        self._is_flushing = False
        self._flushed_us = 0
        self._is_refreshing = False
        self._is_heartbeat_set = False

    def watch(self, now: Now, watcher: ViewFollower) -> None:
        feed = self.feeds[watcher.view.name]
        self.followed[watcher.view.name] = feed
        feed.watchers[watcher] = None
        self._sessions.setdefault(watcher.session, []).append(watcher)
        if views.is_made(self._machine, watcher.view):
            views.refresh(self._machine, now, watcher.view)
            self._expect_refresh(now)
        self._expect_heartbeat(now)
        if watcher.wants:
            self._update(feed, watcher)
        self.changed(now)

    def unwatch(self, watcher: ViewFollower) -> None:
        mine = self._sessions[watcher.session]
        mine.remove(watcher)
        if not mine:
            del self._sessions[watcher.session]
        feed = self.feeds[watcher.view.name]
        del feed.watchers[watcher]
        if not feed.watchers:
            feed.forget()
            del self.followed[watcher.view.name]

    def left(self, session: Session) -> None:
        """A connection is closed: remove its followers."""
        self._updated.pop(session, None)
        for watcher in list(self._sessions.get(session, ())):
            self.unwatch(watcher)

    def adopt(self, session: Session, principal: Principal) -> bool:
        """Apply changed rights to the followers of a connection; False when one may no longer read its view."""
        changed = False
        for watcher in self._sessions.get(session, ()):
            if isinstance(views.find(self._machine, principal, watcher.view.name), Refusal):
                return False
            changed |= watcher.look(views.seen_by(principal, watcher.sight.glob))
        if changed:
            self.wake(self._runtime.scheduler.now())
        return True

    def granted(self, watcher: ViewFollower) -> None:
        if watcher.wants:
            self.wake(self._runtime.scheduler.now())

    def changed(self, now: Now) -> None:
        """A view may have changed: notify its followers soon, but not too often."""
        if any(feed.view.version != feed.version for feed in self.followed.values()):
            self.wake(now)

    def wake(self, now: Now) -> None:
        """A follower may be behind."""
        if self._is_flushing or not self.followed:
            return
        self._is_flushing = True
        due_us = self._flushed_us + self._machine.limits.view_flush_ms * 1000
        self._runtime.scheduler.at(max(due_us, now.us), self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        now = self._runtime.scheduler.now()
        self._flushed_us = now.us
        for feed in list(self.followed.values()):
            version = feed.version = feed.view.version
            for watcher in feed.watchers:
                connection = self._runtime.peers.find(watcher.session) if watcher.seen != version else None
                if connection is not None and not connection.stuck and watcher.wants:
                    self._update(feed, watcher)
            feed.forget()

    def _update(self, feed: ViewFeed, watcher: ViewFollower) -> None:
        if feed.update(watcher):
            self._updated[watcher.session] = None
            self._runtime.peers.touch_session(watcher.session)

    # Views that are made on demand

    def _expect_refresh(self, now: Now) -> None:
        if not self._is_refreshing:
            self._is_refreshing = True
            self._runtime.scheduler.at(now.us + self._machine.limits.view_beat_ms * 1000, self._refresh)

    def _refresh(self) -> None:
        self._is_refreshing = False
        now = self._runtime.scheduler.now()
        made = [feed.view for feed in self.followed.values() if views.is_made(self._machine, feed.view)]
        for view in made:
            views.refresh_step(self._machine, now, view)
        if made:
            self._expect_refresh(now)
            self.changed(now)

    # Heartbeats

    def _expect_heartbeat(self, now: Now) -> None:
        if not self._is_heartbeat_set:
            self._is_heartbeat_set = True
            due_us = now.us + self._machine.limits.live_heartbeat_ms * 1000
            self._runtime.scheduler.at(due_us, self._heartbeat)

    def _heartbeat(self) -> None:
        """Send a heartbeat to followers that received nothing for a while."""
        self._is_heartbeat_set = False
        for session, watchers in self._sessions.items():
            heartbeat = watchers[0].style.heartbeat
            connection = self._runtime.peers.find(session)
            if not heartbeat or session in self._updated or connection is None or connection.stuck:
                continue
            if session.closing is None:
                session.out.append(heartbeat)
                self._runtime.peers.touch(connection)
        self._updated.clear()
        if self._sessions:
            self._expect_heartbeat(self._runtime.scheduler.now())
