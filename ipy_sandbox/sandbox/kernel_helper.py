# mypy: ignore-errors
# ruff: noqa: F821
# This text runs in the sandbox's kernel, see helper.py, where it leaves no trace: no name, no number, no history.
# It must work on old Pythons and IPythons.


def _ipy_sandbox_helper(request, mark):
    import asyncio
    import base64
    import json
    import os
    import sys
    import types

    shell = get_ipython()
    names = shell.user_ns

    def forget_this_cell(result):
        shell.events.unregister("post_run_cell", forget_this_cell)
        # The reply tells this number less one, and execd would wait for ever for one above 0.
        if result.execution_count == 1:
            try:
                asyncio.get_running_loop().call_soon(forget, result)
                return
            except RuntimeError:  # an old kernel
                pass
        forget(result)

    def forget(result):
        history, number = shell.history_manager, result.execution_count
        shell.execution_count = number
        del history.input_hist_parsed[number:], history.input_hist_raw[number:]
        history.output_hist.pop(number, None)
        history._i00, history._i, history._ii = history._i, history._ii, history._iii
        names.pop("_i" + str(number), None)

    def codec():
        # In sys.modules for as long as they import each other.
        package = types.ModuleType("_ipy_sandbox")
        package.__path__ = []
        modules = {"_ipy_sandbox": package}
        try:
            for file, text in request["codec"]:
                module = types.ModuleType("_ipy_sandbox." + file.partition(".")[0])
                module.__package__ = "_ipy_sandbox"
                setattr(package, file.partition(".")[0], module)
                modules[module.__name__] = module
                sys.modules.update(modules)
                exec(compile(text, "<ipy_sandbox>", "exec"), module.__dict__)
        finally:
            for name in modules:
                sys.modules.pop(name, None)
        return package

    def arrow():
        return codec().variable_arrow.available()

    def push():
        code = codec().variable_codec
        for name, where in request["values"].items():
            if "file" in where:
                with open(where["file"], "rb") as file:
                    data = file.read()
                os.remove(where["file"])
            else:
                data = base64.b64decode(where["inline"])
            names[name] = code.decode(data)

    def pull():
        code, answer = codec().variable_codec, {}
        for number, name in enumerate(request["names"]):
            if name not in names:
                raise LookupError(f"there is no variable {name!r} in the sandbox")
            try:
                data = code.encode(names[name], arrow=request["arrow"])
            except code.Refused as error:
                raise LookupError(f"{name}: {error}") from None
            if len(data) > request["limit"]:
                told = "{} has {:.0f} MB, over the limit of {:.0f} MB"
                raise LookupError(told.format(name, len(data) / 1e6, request["limit"] / 1e6))
            if len(data) <= request["inline"]:
                answer[name] = {"inline": base64.b64encode(data).decode()}
                continue
            path = "{}-{}".format(request["path"], number)
            with open(path, "wb") as file:
                file.write(data)
            answer[name] = {"file": path, "size": len(data)}
        return answer

    def remove():
        for path in request["paths"]:
            os.remove(path)

    def complete():
        completer = shell.Completer
        jedi, completer.use_jedi = completer.use_jedi, False  # slow, and not part of `complete`
        try:
            return shell.complete("", request["line"], request["cursor"])[1][:500]
        finally:
            completer.use_jedi = jedi

    # The history database refuses a number that comes twice, aloud.
    shell.history_manager.enabled = False
    shell.events.register("post_run_cell", forget_this_cell)
    work = {"arrow": arrow, "push": push, "pull": pull, "remove": remove, "complete": complete}[request["do"]]
    try:
        answer = {"answer": work()}
    except Exception as error:
        answer = {"error": str(error) if isinstance(error, LookupError) else repr(error)}
    sys.stdout.write(mark + json.dumps(answer) + "\n")
    sys.stdout.flush()
