// headrace._core: the library for the package headrace. Not meant to be used directly.
#include "python/src/common.h"

#include "headrace/base/safe_file.h"

namespace headrace::python {

namespace {

// The classes of headrace/_errors.py, filled with what the error knows.
void raise(const Raised& e) {
  const bool refused = e.refusal != nullptr;
  const nb::module_ errors = nb::module_::import_("headrace._errors");
  nb::object raised;
  if (refused) {
    raised = errors.attr("DoesNotFit")(e.status.message(), e.refusal->needed_bytes,
                                       e.refusal->budget, e.refusal->options);
  } else if (e.status.code() == Code::kDoesNotFit) {
    raised = errors.attr("DoesNotFit")(e.status.message());
  } else {
    raised = errors.attr("HeadraceError")(e.status.message(), code_name(e.status.code()));
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
}

}  // namespace

void write_text(const std::string& path, const std::string& text) {
  check(write_atomically(path, text));
}

void bind_errors(nb::module_&) {
  nb::register_exception_translator(
      [](const std::exception_ptr& p, void*) {
        try {
          std::rethrow_exception(p);
        } catch (const Raised& e) {
          try {
            raise(e);
          } catch (nb::python_error& other) {
            other.restore();  // what went wrong on the way, an import that failed for instance
          }
        }
      },
      nullptr);
}

NB_MODULE(_core, m) {
  // An uncaught exception ends the process with its frames alive: a page of names would hide it.
  nanobind::set_leak_warnings(false);
  m.doc() = "The compiled part of headrace: plans, the engine that follows them, memory.";
  m.attr("version") = HEADRACE_VERSION;
  bind_errors(m);
  bind_machine(m);
  bind_plan(m);
  bind_engine(m);
  bind_spill(m);
  bind_process(m);
  bind_doctor(m);
  bind_step(m);
}

}  // namespace headrace::python
