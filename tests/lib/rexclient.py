# SPDX-License-Identifier: Apache-2.0
"""
swe-rex's own client (PyPI) on a server of ours, shortly. A script that uses it has entered the
virtual environment (venv.enter) first.
"""
import asyncio
import contextlib
import io
import logging

from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

import server
from server import form

logging.disable(logging.CRITICAL)


def rex(t, *options, **kw):
    s = server.rex(t, *options, **kw)
    s.runtime = RemoteRuntime(port=s.port, auth_token=s.token or "", timeout=30)
    return s


def run(coroutine):
    with contextlib.redirect_stdout(io.StringIO()):  # the client prints each exception's name
        asyncio.run(coroutine)


async def raises(what, awaitable, says=""):
    """The exception; exactly of this class, as the client makes it."""
    try:
        got = await awaitable
    except Exception as e:
        assert type(e) is what and says in str(e), "%r %s" % (type(e), e)
        return e
    raise AssertionError("%s did not come, but %r" % (what.__name__, got))


def create(name="default", **kw):
    return CreateBashSessionRequest(session=name, startup_timeout=60, **kw)


def quick(command, **kw):
    kw.setdefault("timeout", 60)
    return BashAction(command=command, **kw)
