# mypy: ignore-errors
# ruff: noqa: F821
# This text runs in the sandbox's kernel, see prelude.py. It must work on old Pythons and IPythons, so it imports
# nothing from here and has no `from __future__` line: that would hold for the user's cells as well.


def _ipy_sandbox_prelude(carrier, key, env_vars):
    import contextlib
    import json
    import os
    import re
    import sys
    import time

    os.environ.update(env_vars)
    shell = get_ipython()
    publisher, hook = shell.display_pub, shell.displayhook
    session = shell.kernel.session
    # execd ends its stream soon after a count above 0, and never if a 0 comes between that and the end.
    count = [0]
    streams = sys.stdout, sys.stderr
    drawing = []
    # The cell that runs: its number, its request, what IPython knows of it; and when it was over.
    cell, request, information, over_at = [0], [None], [None], [0.0]
    # Seconds that the messages sent so far still need to pass Jupyter, and since when.
    debt = [0.0, 0.0]

    def quote_of(data):
        # e2b cuts the quotes around a text.
        text = data.get("text/plain")
        if carrier == "display_data" and isinstance(text, str) and len(text) > 1 and text[0] == text[-1] in "'\"":
            return {"quote": text[0]}
        return {}

    def carry(msg):
        kind, content = msg["msg_type"], msg["content"]
        data = content.get("data", {})
        if kind == "clear_output":
            operation = {"op": "clear", "wait": content["wait"]}
        else:
            operation = {"op": "update" if kind == "update_display_data" else "display"}
            display_id = content.get("transient", {}).get("display_id")
            metadata = content.get("metadata")
            if display_id:
                operation["id"] = display_id
            if metadata:
                operation["metadata"] = metadata
            operation.update(quote_of(data))
        if kind == carrier and len(operation) == 1:
            return msg
        msg["msg_type"] = msg["header"]["msg_type"] = carrier
        msg["content"] = {"data": dict(data, **{key: operation}), "metadata": {}, "transient": {}}
        if time.monotonic() - over_at[0] > 0.5:
            count[0] = 0
        msg["content"]["execution_count"] = count[0]
        return msg

    def carrying(method):
        def carried(*args, **kwargs):
            # Hooks belong to a thread, and any thread may display.
            if carry not in publisher._hooks:
                publisher.register_hook(carry)
            return method(*args, **kwargs)

        return carried

    def mark_result():
        content = hook.msg["content"] if hook.msg else {}
        data = content.get("data")
        if data:
            operation = dict(quote_of(data), op="result")
            if carrier == "execute_result":
                operation["count"], content["execution_count"] = content["execution_count"], 0
            if content.get("metadata"):
                operation["metadata"] = content["metadata"]
            if len(operation) > 1:
                data[key] = operation
        finish()

    def draw_figures():
        inline = sys.modules.get("matplotlib_inline.backend_inline")
        if inline is not None and not drawing:
            drawing.append(inline)
            with contextlib.suppress(Exception):
                inline.flush_figures()
            drawing.clear()

    def show_traceback(etype, evalue, stb):
        if carrier == "execute_result":
            # execd may end its stream at the error.
            draw_figures()
        # One string: not every server keeps the line breaks between several.
        send_traceback(etype, evalue, ["\n".join(stb)] if stb and not isinstance(stb, str) else stb)

    def wake_on_signals():
        # A signal alone does not wake a loop that sleeps: an interrupt of a cell that awaits would come too late.
        import asyncio
        import signal
        import socket

        other = signal.set_wakeup_fd(-1)
        if other != -1:
            signal.set_wakeup_fd(other)
            return
        reader, writer = publisher._ipy_sandbox = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        asyncio.get_running_loop().add_reader(reader, lambda: reader.recv(4096))
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def make_publishing_safe():
        # After an error the thread that sends may not wake any more, and no cell would end. Its own pipe is made while
        # there are descriptors.
        thread = publisher.pub_socket.io_thread
        _ = thread._event_pipe

        def handle(message):
            for _ in range(len(thread._events)):
                with contextlib.suppress(Exception):
                    thread._events.popleft()()

        thread._event_puller.on_recv(handle)

    def pack_all(content):
        # No message can hold half of a surrogate pair: its escape goes instead.
        try:
            return pack(content)
        except UnicodeEncodeError:
            text = json.dumps(content, default=str, ensure_ascii=False)
            return re.sub("[\ud800-\udfff]", lambda half: rf"\\u{ord(half.group()):x}", text).encode("utf-8")

    def show_page(self, text, start=0, screen_lines=0):
        publisher.publish(text if isinstance(text, dict) else {"text/plain": text})

    def mark(operation):
        for stream in streams:
            stream.flush()
        content = {"data": {key: operation}, "metadata": {}, "execution_count": count[0]}
        parent = publisher.parent_header
        session.send(publisher.pub_socket, carrier, content, parent=parent, ident=carrier.encode())

    def send_counted(stream, msg_or_type, content=None, *args, **kwargs):
        body = msg_or_type.get("content") if isinstance(msg_or_type, dict) else content
        size = len(body.get("text", "")) if isinstance(body, dict) else 0
        now = time.monotonic()
        debt[:] = max(0, debt[0] - now + debt[1]) + 0.002 + size / 2e7, now
        return send(stream, msg_or_type, content, *args, **kwargs)

    def sees_execd():
        # Only then our process id means something to it.
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError), open("/proc/" + entry + "/comm") as name:
                if name.read() == "execd\n":
                    return True
        return False

    def mark_start(info=None):
        parent = publisher.parent_header.get("msg_id")
        if parent != request[0]:
            # And not `run_cell` within a cell.
            request[0], information[0], count[0] = parent, info, 0
            cell[0] += 1
            mark(dict(identity, op="start", cell=cell[0]))

    def mark_end(result=None):
        if cell[0] and getattr(result, "info", information[0]) is not information[0]:
            return
        number = max(1, shell.execution_count - 1)
        # The error has told the end already, and this might come into the next cell's stream.
        count[0], over_at[0] = number if getattr(result, "success", True) else 0, time.monotonic()
        mark(dict(identity, op="end", cell=cell[0], count=number))
        # The reply, which goes another way, must not overtake the outputs: execd ends its stream then.
        if count[0]:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(max(0, min(2, debt[0] - time.monotonic() + debt[1])))
        over_at[0] = time.monotonic()

    def forget_later(result):
        # A reply with the count 0 would keep execd waiting for ever.
        import asyncio

        shell.events.unregister("post_run_cell", forget_later)
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().call_soon(forget, result)

    def forget_this_cell(result):
        shell.events.unregister("post_run_cell", forget_this_cell)
        forget(result)

    def forget(result):
        history, number = shell.history_manager, result.execution_count
        shell.execution_count = number
        del history.input_hist_parsed[number:], history.input_hist_raw[number:]
        history.output_hist.pop(number, None)
        history._i00, history._i, history._ii = history._i, history._ii, history._iii
        shell.user_ns.pop("_i" + str(number), None)

    # The history database refuses a number that comes twice, aloud.
    shell.history_manager.enabled = False
    marking = carrier == "execute_result"
    shell.events.register("post_run_cell", forget_later if marking else forget_this_cell)
    if getattr(publisher, "_ipy_sandbox", None):
        return
    publisher._ipy_sandbox = True
    publisher.publish, publisher.clear_output = carrying(publisher.publish), carrying(publisher.clear_output)
    finish, hook.finish_displayhook = hook.finish_displayhook, mark_result
    send_traceback, shell._showtraceback = shell._showtraceback, show_traceback
    shell.set_hook("show_in_pager", show_page, 0)
    pack, session.pack = session.pack, pack_all
    if marking:
        identity = {"pid": os.getpid()} if sees_execd() else {}
        send, session.send = session.send, send_counted
        # The stream of a failed cell may end before the cell does. The kernel would drop the next one then, for which
        # execd would wait for ever.
        shell.kernel._abort_queues = lambda *subshell: None
        shell.events.register("pre_run_cell", mark_start)
        shell.events.register("post_run_cell", mark_end)
    with contextlib.suppress(Exception):
        publisher.pub_socket.io_thread.schedule(make_publishing_safe)
    with contextlib.suppress(Exception):
        wake_on_signals()
    if str(shell.colors).lower() == "nocolor":
        shell.run_line_magic("colors", "neutral")
