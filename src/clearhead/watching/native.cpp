// The recorder without Python in between: see native.py.
//
// A kernel above the one of dispatcher.py, for the same operator. It takes the calls whose copies
// are easy to make: ordinary tensors that nobody has written to yet, no mask of the user's own. Any
// other call goes on to the kernel in Python, which is told of it as if this one were not here.

#include <Python.h>

#include <ATen/ops/_lazy_clone.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::autograd {
TORCH_API int get_current_graph_task_id();  // -1 outside a backward pass
}

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

constexpr DispatchKey OURS = DispatchKey::TESTING_ONLY_GenericMode;
constexpr DispatchKey PYTHONS = DispatchKey::TESTING_ONLY_GenericWrapper;

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

// A reference to an object of Python's, given back at the end.
struct Owned {
  PyObject* object = nullptr;
  explicit Owned(PyObject* object) : object(object) {}
  Owned(Owned&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (object == nullptr) return;
    Gil gil;
    Py_DECREF(object);
  }
};

struct Call {
  size_t place;  // of its module among the nodes
  Tensor q, k;
  bool is_causal;
  std::optional<double> scale;
  bool enable_gqa;
};

// A module of the watched model: its place in the tree says its name, which few ask for.
struct Node {
  Owned key;
  size_t parent;
};

struct Recording {
  // So many bytes may be held beyond what is wanted; see copies.py.
  size_t spare_cpu, spare_cuda;
  std::vector<Node> nodes;  // the model itself is the first
  // Where a module is among them. Borrowed: Python holds the modules, so that its garbage collector
  // sees who holds the model; nobody can look into a capsule.
  std::unordered_map<PyObject*, size_t> known;
  std::vector<Call> calls;
};

thread_local Recording* here = nullptr;

PyObject* call_code;  // nn.Module._call_impl's
PyObject* multihead_class;
PyObject *self_name, *modules_name, *forward_name;

// Whether the dispatcher works as ever, but for us: in no autocast, trace, transform of torch.func,
// mode or inference mode.
bool is_usual() {
  constexpr auto included = c10::default_included_set | DispatchKeySet({OURS, PYTHONS});
  const auto now = c10::impl::tls_local_dispatch_key_set();
  return now.included_ == included && now.excluded_ == c10::default_excluded_set;
}

// Whether a copy of `x` can share its memory until somebody writes to it.
bool can_share(const Tensor& x) {
  constexpr auto ordinary = DispatchKeySet(
      {DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::ADInplaceOrView, DispatchKey::AutogradCPU,
       DispatchKey::AutogradCUDA, DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA});
  if (x.key_set().raw_repr() & ~ordinary.raw_repr()) return false;
  if (x.is_inference() || x._version() != 0) return false;
  // A parameter, or a view of one: optimizers write to it in ways of their own.
  const at::TensorBase& whole = x.is_view() ? x._base() : x;
  if (whole.is_leaf() && whole.requires_grad()) return false;
  return c10::impl::cow::is_cow_data_ptr(x.storage().data_ptr()) ||
         c10::impl::cow::has_simple_data_ptr(*x.storage().unsafeGetStorageImpl());
}

bool is_pair(const Tensor& q, const Tensor& k) {
  return q.is_alias_of(k) && q.dtype() == k.dtype();
}

// What copies hold beyond twice the bytes wanted of them.
size_t beyond(const Tensor& x, size_t wanted) {
  const size_t held = x.storage().nbytes();
  return held > 2 * wanted ? held - 2 * wanted : 0;
}

// Whether ours is a call whose copies are easy to make; what they hold is taken off the spare.
bool is_easy(Recording& recording, const Tensor& q, const Tensor& k,
             const std::optional<Tensor>& mask) {
  if (mask.has_value() && mask->defined()) return false;
  if (!is_usual() || torch::autograd::get_current_graph_task_id() != -1) return false;
  if (!can_share(q) || !can_share(k)) return false;
  const size_t more = is_pair(q, k) ? beyond(q, q.nbytes() + k.nbytes())
                                    : beyond(q, q.nbytes()) + beyond(k, k.nbytes());
  size_t& spare = q.is_cuda() ? recording.spare_cuda : recording.spare_cpu;
  if (more > spare) return false;
  spare -= more;
  return true;
}

// A copy that is made when somebody writes, or at once where torch cannot do that.
Tensor copy(const Tensor& x) {
  try {
    return at::_lazy_clone(x);
  } catch (const c10::Error&) {
    return x.clone();
  }
}

// The place of the innermost module of the model that was called and is running now, if any.
std::optional<size_t> running(const Recording& recording) {
  Gil gil;
  std::optional<size_t> found;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && !found) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (reinterpret_cast<PyObject*>(code) == call_code) {
#if PY_VERSION_HEX >= 0x030C0000
      PyObject* module = PyFrame_GetVar(frame, self_name);
#else
      PyObject* locals = PyFrame_GetLocals(frame);
      PyObject* module = locals == nullptr ? nullptr : PyObject_GetItem(locals, self_name);
      Py_XDECREF(locals);
#endif
      if (module == nullptr) {
        PyErr_Clear();
      } else if (const auto it = recording.known.find(module); it != recording.known.end()) {
        found = it->second;
      }
      Py_XDECREF(module);
    }
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return found;
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const std::optional<Tensor>& mask, double dropout_p, bool is_causal,
                 std::optional<double> scale, bool enable_gqa) {
  const auto go_on = [&](DispatchKeySet without) {
    c10::impl::ExcludeDispatchKeyGuard guard(without);
    return at::scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa);
  };
  Recording* const recording = here;
  if (recording == nullptr || !is_easy(*recording, q, k, mask)) return go_on(DispatchKeySet(OURS));
  const auto place = running(*recording);
  if (!place) return go_on(DispatchKeySet(OURS));
  Call call{*place, {}, {}, is_causal, scale, enable_gqa};
  Tensor output = go_on(DispatchKeySet({OURS, PYTHONS}));
  {
    static std::mutex sharing;  // torch makes memory shared without a lock
    const std::lock_guard alone(sharing);
    at::AutoDispatchBelowADInplaceOrView without_gradients;
    call.q = copy(q);
    // Parts of one tensor, as after one projection for all, stay that.
    call.k = is_pair(q, k) && c10::impl::cow::is_cow_data_ptr(call.q.storage().data_ptr())
                 ? call.q.as_strided(k.sizes(), k.strides(), k.storage_offset())
                 : copy(k);
  }
  Gil gil;
  recording->calls.push_back(std::move(call));
  return output;
}

// For Python.

Recording* recording_of(PyObject* capsule) {
  return static_cast<Recording*>(PyCapsule_GetPointer(capsule, nullptr));
}

void forget(PyObject* capsule) {
  delete recording_of(capsule);
}

// This thread's calls are heard from now on, and written to a recording; None: no longer.
PyObject* switch_to(PyObject*, PyObject* capsule) {
  Recording* wanted = nullptr;
  if (capsule != Py_None && (wanted = recording_of(capsule)) == nullptr) return nullptr;
  here = wanted;
  c10::impl::tls_set_dispatch_key_included(OURS, wanted != nullptr);
  c10::impl::tls_set_dispatch_key_included(PYTHONS, wanted != nullptr);
  Py_RETURN_NONE;
}

// Add a module and what is below it. Not if one is of an unusual make, has a forward of its own or
// is an nn.MultiheadAttention: recorder.py knows what to do then.
bool add(Recording& recording, PyObject* modules, PyObject* module, PyObject* key, size_t parent) {
  const size_t place = recording.nodes.size();
  if (!recording.known.emplace(module, place).second) return true;
  recording.nodes.push_back({Owned(Py_NewRef(key)), parent});
  if (PyList_Append(modules, module)) return false;
  if (PyType_IsSubtype(Py_TYPE(module), reinterpret_cast<PyTypeObject*>(multihead_class))) {
    return false;
  }
  PyObject* own = PyObject_GenericGetDict(module, nullptr);
  PyObject* children = PyObject_GetAttr(module, modules_name);
  bool done = own != nullptr && PyDict_Contains(own, forward_name) == 0 && children != nullptr &&
              PyDict_CheckExact(children);
  PyObject *name, *child;
  for (Py_ssize_t next = 0; done && PyDict_Next(children, &next, &name, &child);) {
    done = child == Py_None || (PyUnicode_Check(name) && add(recording, modules, child, name, place));
  }
  Py_XDECREF(own);
  Py_XDECREF(children);
  return done;
}

// record(model, spare_cpu, spare_cuda): a recording and the modules, to be held as long as it hears;
// None for a model that is not ordinary.
PyObject* record(PyObject*, PyObject* arguments) {
  PyObject* model;
  Py_ssize_t cpu, cuda;
  if (!PyArg_ParseTuple(arguments, "Onn", &model, &cpu, &cuda)) return nullptr;
  auto* recording = new Recording{size_t(cpu), size_t(cuda)};
  recording->nodes.reserve(256);
  recording->known.reserve(256);
  PyObject* capsule = PyCapsule_New(recording, nullptr, forget);
  PyObject* modules = PyList_New(0);
  if (add(*recording, modules, model, Py_None, 0)) return Py_BuildValue("(NN)", capsule, modules);
  Py_DECREF(capsule);
  Py_DECREF(modules);
  PyErr_Clear();
  Py_RETURN_NONE;
}

// [(its own name, the number of its parent), ...] of every module, the model first.
PyObject* nodes(PyObject*, PyObject* capsule) {
  Recording* recording = recording_of(capsule);
  if (recording == nullptr) return nullptr;
  PyObject* rows = PyList_New(0);
  for (const Node& node : recording->nodes) {
    PyObject* row =
        Py_BuildValue("(On)", node.key.object, static_cast<Py_ssize_t>(node.parent));
    PyList_Append(rows, row);
    Py_DECREF(row);
  }
  return rows;
}

using Tensors = std::vector<Tensor>;

void forget_tensors(PyObject* capsule) {
  delete static_cast<Tensors*>(PyCapsule_GetPointer(capsule, nullptr));
}

// ([(number of its module, is_causal, scale, enable_gqa), ...], where their tensors are, who owns
// these): the calls so far, which the recording forgets.
PyObject* take(PyObject*, PyObject* capsule) {
  Recording* recording = recording_of(capsule);
  if (recording == nullptr) return nullptr;
  PyObject* rows = PyList_New(0);
  auto* tensors = new Tensors();
  // What follows may run the garbage collector, and that anything: the calls are ours first.
  const auto calls = std::exchange(recording->calls, {});
  for (const Call& call : calls) {
    tensors->push_back(call.q);
    tensors->push_back(call.k);
    PyObject* row = Py_BuildValue("(nONO)", static_cast<Py_ssize_t>(call.place),
                                  call.is_causal ? Py_True : Py_False,
                                  call.scale ? PyFloat_FromDouble(*call.scale) : Py_NewRef(Py_None),
                                  call.enable_gqa ? Py_True : Py_False);
    PyList_Append(rows, row);
    Py_DECREF(row);
  }
  return Py_BuildValue("(NNN)", rows, PyLong_FromVoidPtr(tensors),
                       PyCapsule_New(tensors, nullptr, forget_tensors));
}

PyObject* count(PyObject*, PyObject* capsule) {
  Recording* recording = recording_of(capsule);
  return recording == nullptr ? nullptr : PyLong_FromSize_t(recording->calls.size());
}

PyMethodDef functions[] = {
    {"record", record, METH_VARARGS, "A recording for a model, if it is an ordinary one."},
    {"nodes", nodes, METH_O, "The names of the modules of a recording's model."},
    {"switch_to", switch_to, METH_O, "The recording of this thread's calls from now on, or None."},
    {"take", take, METH_O, "The calls recorded so far; the recording is empty then."},
    {"count", count, METH_O, "How many calls are recorded."},
    {nullptr, nullptr, 0, nullptr},
};

int set_up(PyObject*) {
  PyObject* nn = PyImport_ImportModule("torch.nn");
  PyObject* kind = nn ? PyObject_GetAttrString(nn, "Module") : nullptr;
  multihead_class = nn ? PyObject_GetAttrString(nn, "MultiheadAttention") : nullptr;
  PyObject* call = kind ? PyObject_GetAttrString(kind, "_call_impl") : nullptr;
  call_code = call ? PyObject_GetAttrString(call, "__code__") : nullptr;
  self_name = PyUnicode_InternFromString("self");
  modules_name = PyUnicode_InternFromString("_modules");
  forward_name = PyUnicode_InternFromString("forward");
  Py_XDECREF(nn);
  Py_XDECREF(kind);
  Py_XDECREF(call);
  return call_code && multihead_class && self_name && modules_name && forward_name ? 0 : -1;
}

PyModuleDef_Slot slots[] = {{Py_mod_exec, reinterpret_cast<void*>(set_up)}, {0, nullptr}};

// In two phases: in one, Python would put it into sys.modules.
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "native", nullptr, 0, functions, slots};

}  // namespace

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  library.impl("scaled_dot_product_attention", &attention);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

// [q, k, q, k, ...] of `take`. An operator, because torch gives what operators return to Python.
TORCH_LIBRARY_FRAGMENT(clearhead, library) {
  library.def("taken_tensors(int place) -> Tensor[]",
              [](int64_t place) { return *reinterpret_cast<Tensors*>(place); });
}

PyMODINIT_FUNC PyInit_native() {
  return PyModuleDef_Init(&definition);
}
