// How tensors of PyTorch are seen, checked and made: through DLPack, and no copy.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <algorithm>

#include "points.h"

namespace {

// What DLPack 1.3 fixes for exchange between libraries in one process: how PyTorch shows a tensor.
struct View {
    void* data;
    int32_t device, device_index, ndim;
    uint8_t kind, bits;
    uint16_t lanes;
    Index *shape, *strides;
    uint64_t offset;
};
struct Exchange {
    uint32_t major, minor;
    void* older;
    void *allocate, *from_object, *to_object;  // not used: tensors made so cannot be resized
    int (*view)(PyObject* object, View*);
};
enum { CPU = 1, FLOAT = 2, BOOL = 6 };

const Exchange* exchange;
PyObject *tensor_type, *parameter_type, *new_empty, *is_neg, *float_types[2];
PyObject *empty_strided, *deterministic;  // the shortest way to memory, and whether it is to be filled; or both null

bool connect_torch() {
    PyObject *torch = PyImport_ImportModule("torch"), *nn = PyImport_ImportModule("torch.nn"), *capsule = nullptr;
    if (torch && nn && (tensor_type = PyObject_GetAttrString(torch, "Tensor")) &&
        (parameter_type = PyObject_GetAttrString(nn, "Parameter")) &&
        (float_types[0] = PyObject_GetAttrString(torch, "float32")) &&
        (float_types[1] = PyObject_GetAttrString(torch, "float64")) &&
        (new_empty = PyUnicode_InternFromString("new_empty")) && (is_neg = PyUnicode_InternFromString("is_neg")) &&
        (capsule = PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__")))
        exchange = (const Exchange*)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(torch), Py_XDECREF(nn), Py_XDECREF(capsule);
    return exchange && exchange->major == 1 && exchange->view;
}

Index product(const Index* shape, Index ndim) {
    Index total = 1;
    for (Index axis = 0; axis < ndim; axis++) total *= shape[axis];
    return total;
}

// What PyTorch shows of a tensor that is no subclass and no wrapper; or false. This is most of what a check costs.
bool show(PyObject* object, View& x) {
    if ((PyObject*)Py_TYPE(object) != tensor_type && (PyObject*)Py_TYPE(object) != parameter_type) return false;
    return !exchange->view(object, &x) || (PyErr_Clear(), false);
}

// Where entries are and what they are.
struct Kind {
    int device, device_index, kind, bits;
    bool operator==(const Kind& k) const {
        return device == k.device && device_index == k.device_index && kind == k.kind && bits == k.bits;
    }
};
Kind kind_of(const View& x) { return {x.device, x.device_index, x.kind, x.bits}; }
bool native(const Kind& k) { return k.device == CPU && k.kind == FLOAT && (k.bits == 64 || k.bits == 32); }

// Whether a tensor lies contiguously, as this kind and shape.
bool lies_so(const View& x, Kind kind, Index ndim, const Index* shape) {
    if (!(kind_of(x) == kind) || x.ndim != ndim) return false;
    const Index size = product(x.shape, ndim);
    Index stride = 1;
    for (Index axis = ndim - 1; axis >= 0; stride *= shape[axis--])
        if (x.shape[axis] != shape[axis] || (size && shape[axis] != 1 && x.strides && x.strides[axis] != stride)) return false;
    return true;
}

// Whether the storage was freed by `untyped_storage().resize_(0)`, or tells no address.
bool freed(PyObject* object) {
    PyObject* storage = PyObject_CallMethod(object, "untyped_storage", nullptr);
    PyObject* address = storage ? PyObject_CallMethod(storage, "data_ptr", nullptr) : nullptr;
    const bool none = !address || !PyObject_IsTrue(address);
    Py_XDECREF(storage), Py_XDECREF(address);
    PyErr_Clear();
    return none;
}

// Whether a tensor is no promise of zeros and not the negative of what is stored, but contiguous entries of this kind and
// shape. None is null and may be read where it is allowed.
bool readable(PyObject* object, bool optional, Kind kind, Index ndim, const Index* shape, void** data,
              const View* seen = nullptr) {
    *data = nullptr;
    if (object == Py_None) return optional;
    View x;
    if (seen) x = *seen;
    if ((!seen && !show(object, x)) || !lies_so(x, kind, ndim, shape)) return false;
    *data = (char*)x.data + x.offset;
    // A view of freed memory shows its offset for an address. Where Python is not position-independent, as Debian's, small
    // tensors do lie that low: there the storage is asked.
    if (product(shape, ndim) && (!x.data || (uintptr_t(*data) < uintptr_t(1) << 32 && freed(object)))) return false;
    PyObject* negated = PyObject_CallMethodObjArgs(object, is_neg, nullptr);
    Py_XDECREF(negated);
    return negated == Py_False;
}

// The shape of a point as the program takes it, of all channels, and how many it has: the first blocks, or all where the
// program is transposed; or false.
bool shaped(const Program& f, PyObject* object, View& x, Extent& extent, Index* shape, Index* given) {
    if (!show(object, x)) return false;
    const Index event = f.kind == LAGGED ? 2 : 1 + f.axes, channel = x.ndim - 1 - f.axes;
    if (x.ndim < event || x.ndim > 16 || (event > 1 && x.ndim > event + 1)) return false;
    double entries = 1;  // with all channels, and also where an axis is empty
    for (Index axis = 0; axis < x.ndim; axis++) {
        shape[axis] = x.shape[axis];
        entries *= axis == channel ? f.channels : std::max<Index>(shape[axis], 1);
    }
    if (entries > MOST_ENTRIES) return false;
    extent = {0, f.kind == LAGGED ? shape[channel - 1] : 1, 0, {1, 1, 1}, 0};
    for (Index axis = 0; axis < f.axes; axis++) extent.space[3 - f.axes + axis] = shape[channel + 1 + axis];
    extent.area = extent.times * product(extent.space, 3);
    *given = shape[channel];
    shape[channel] = f.channels;
    extent.batch = extent.area ? product(shape, x.ndim - event) : 0;
    return f.transposed ? *given == f.channels : f.whole_blocks(*given);
}

// Weight or None, bias, y0, z0, point, value and inside, as a program takes them: where they are, or that one does not fit.
struct Given {
    PyObject* like;  // y0 or else z0
    Kind kind;
    Extent extent;
    Index ndim, inputs, shape[16];
    void* data[7];
    bool fits;
    Given(const Program& f, PyObject* const* a) : like(a[2] == Py_None ? a[3] : a[2]) {
        View x;
        fits = shaped(f, like, x, extent, shape, &inputs);
        if (!fits) return;
        kind = kind_of(x), ndim = x.ndim;
        const Kind flags = {kind.device, kind.device_index, BOOL, 8};
        fits = readable(a[0], true, kind, f.weight_axes, f.weight_shape, data) &&
               readable(a[1], true, kind, 1, &f.channels, data + 1) && readable(a[2], true, kind, ndim, x.shape, data + 2, &x);
        for (int i = 3; fits && i < 7; i++) fits = readable(a[i], true, i < 6 ? kind : flags, ndim, shape, data + i);
    }
};

// A new tensor of this shape and kind, the kind of another, and where it is.
PyObject* empty(PyObject* like, Kind kind, Index ndim, const Index* shape, void** data) {
    PyObject *sizes = PyTuple_New(ndim), *strides = PyTuple_New(ndim), *result = nullptr;
    for (Index axis = ndim - 1, stride = 1; sizes && strides && axis >= 0; stride *= shape[axis] ? shape[axis] : 1, axis--) {
        PyTuple_SetItem(sizes, axis, PyLong_FromLongLong(shape[axis]));
        PyTuple_SetItem(strides, axis, PyLong_FromLongLong(stride));
    }
    PyObject *filled = empty_strided ? PyObject_CallNoArgs(deterministic) : nullptr, *dtype = float_types[kind.bits == 64];
    if (empty_strided && !filled) PyErr_Clear();
    if (sizes && strides)
        result = filled == Py_False ? PyObject_CallFunctionObjArgs(empty_strided, sizes, strides, dtype, nullptr)
                                    : PyObject_CallMethodObjArgs(like, new_empty, sizes, nullptr);
    Py_XDECREF(sizes), Py_XDECREF(strides), Py_XDECREF(filled);
    View x;
    if (result && (!show(result, x) || !lies_so(x, kind, ndim, shape))) {
        PyErr_SetString(PyExc_TypeError, "a new tensor is not what was asked for: is something between it and PyTorch?");
        Py_CLEAR(result);
    }
    if (!result) return nullptr;
    *data = (char*)x.data + x.offset;
    return result;
}

PyObject* nothing() { return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None); }

}  // namespace
