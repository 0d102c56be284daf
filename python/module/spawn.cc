// Starting a child that ends with the thread that started it, for kvist.Node. In C++ because the death signal has to be set
// between the fork and the new program: Python's own way to run code there takes its locks in the child, which other
// threads may hold.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "module.h"

namespace kvist::python {

namespace {

// What a new program begins with anyway. Once signals are let in again, none may find a handler of this process, which would
// run in its memory.
void forget_handlers() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    ::sigaction(number, &action, nullptr);
  }
}

// Runs in the child, in the parent's memory (vfork): only calls that touch nothing but the kernel.
[[noreturn]] void become(const char* program, char* const* arguments, char* const* environment, int out, int err,
                         pid_t parent, const sigset_t* mask, volatile int* failure) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::setpgid(0, 0);  // a Ctrl-C in the terminal interrupts the Python program; it decides what becomes of the child
  forget_handlers();
  errno = 0;
  if (::getppid() == parent && ::dup2(out, STDOUT_FILENO) >= 0 && ::dup2(err, STDERR_FILENO) >= 0) {
    ::sigprocmask(SIG_SETMASK, mask, nullptr);
    ::execve(program, arguments, environment);
  }
  *failure = errno != 0 ? errno : ECHILD;
  ::_exit(127);
}

bool read_strings(PyObject* sequence, std::vector<std::string>* out) {
  Ref list(PySequence_List(sequence));
  if (!list) return false;
  for (Py_ssize_t i = 0; i < PyList_Size(list.get()); ++i) {
    PyObject* bytes = nullptr;
    if (PyUnicode_FSConverter(PyList_GetItem(list.get(), i), &bytes) == 0) return false;
    const Ref held(bytes);
    out->emplace_back(PyBytes_AsString(bytes));
  }
  return true;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& text : strings) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

PyObject* spawn(PyObject*, PyObject* arguments) {
  PyObject *argv = nullptr, *environment = nullptr;
  int out = -1, err = -1;
  if (PyArg_ParseTuple(arguments, "OOii:spawn", &argv, &environment, &out, &err) == 0) return nullptr;
  return guarded([&]() -> PyObject* {
    std::vector<std::string> words, variables;
    if (!read_strings(argv, &words) || !read_strings(environment, &variables)) return nullptr;
    if (words.empty()) return PyErr_Format(PyExc_ValueError, "no program");
    const std::vector<char*> word_pointers = pointers(words), variable_pointers = pointers(variables);
    // No handler of this process may run in the child while it has this process' memory: see forget_handlers().
    sigset_t all, before;
    sigfillset(&all);
    volatile int failure = 0;
    const pid_t parent = ::getpid();
    pid_t child = -1;
    {
      const Unlocked unlocked;
      ::pthread_sigmask(SIG_BLOCK, &all, &before);
      errno = 0;
      child = ::vfork();
      if (child == 0) {
        become(words[0].c_str(), word_pointers.data(), variable_pointers.data(), out, err, parent, &before, &failure);
      }
      if (child < 0) failure = errno;
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    if (child > 0 && failure == 0) return PyLong_FromLong(child);
    if (child > 0) {
      int status = 0;
      ::waitpid(child, &status, 0);
    }
    errno = failure;
    return PyErr_SetFromErrnoWithFilename(PyExc_OSError, words[0].c_str());
  });
}

}  // namespace

bool add_spawn(PyObject* module) {
  static PyMethodDef kMethods[] = {
      {"spawn", spawn, METH_VARARGS,
       "spawn(argv, environ, stdout, stderr, /)\n--\n\n"
       "Starts a program that gets SIGTERM when the calling thread ends, and returns its process id. argv[0] is its path,\n"
       "environ a list of 'NAME=value', stdout and stderr are descriptors."},
      {}};
  return PyModule_AddFunctions(module, kMethods) == 0;
}

}  // namespace kvist::python
