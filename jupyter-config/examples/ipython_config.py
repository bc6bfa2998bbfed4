"""The sandbox for everybody who starts a kernel of this environment.

Copy to `<sys.prefix>/etc/ipython/ipython_config.py` (one environment) or `/etc/ipython/ipython_config.py` (the whole
machine). Users can still override each line in their own configuration. Keys stay in the environment of the server:
E2B_API_KEY, OPEN_SANDBOX_API_KEY, OPENAI_API_KEY ...
"""

c = get_config()  # noqa: F821

# Every kernel has %%sandbox, %sandbox_session and %%ai without %load_ext.
c.InteractiveShellApp.extensions = ["ipy_sandbox"]

# Where the code of a class runs, and for how long.
c.SandboxMagics.provider = "local"
c.SandboxMagics.timeout = 60.0
c.SandboxMagics.lifetime = 600.0
c.SandboxMagics.internet = False

# The model that %%ai asks. OPENAI_BASE_URL and OPENAI_API_KEY in the environment of each kernel say where, and with
# which key: best a proxy of yours (http://127.0.0.1:4000/v1) and the student's own key for it.
c.AIMagics.model = "class-model"
c.AIMagics.max_turns = 10
