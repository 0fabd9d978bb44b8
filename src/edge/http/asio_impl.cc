// The one place where the bodies of Boost.Asio and Beast are compiled; everything else sees declarations.
#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>
