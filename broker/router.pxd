# Types of router.py; see remoting/native/typed.py.
